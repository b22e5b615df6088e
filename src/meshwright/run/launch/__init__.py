"""How ranks come to be: started here, by torchrun, several on one GPU; their threads and cores."""
