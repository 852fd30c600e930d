"""The smallest program that shows one fault of a call again: a graph break, a wrong number, a crash, a slow graph."""
