"""The glue between torch and our compiler: AOTAutograd, decompositions, changes of graphs before they are lowered."""
