"""Entry points: magics, the cell that they run, and the functions of `import explorer`."""
