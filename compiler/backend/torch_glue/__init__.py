"""Between torch and our compiler: AOTAutograd around it, decompositions, graphs before they are lowered."""
