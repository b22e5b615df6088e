"""How each operator is split: layouts of operators and tensors, and what moves between them."""
