"""ATen's operators, their names and lines, and how operators call them."""
