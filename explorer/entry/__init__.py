"""The ways in: magics, the cell that they run, and the functions of `import explorer`."""
