"""What is recognised in a captured graph: experts, merged rows, operators of the user's own."""
