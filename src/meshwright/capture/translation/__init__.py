"""From a traced program to an `OperatorGraph`: operators, dims, guards."""
