"""Glue between torch and our compiler: AOTAutograd, decompositions, graph rewrites before lowering."""
