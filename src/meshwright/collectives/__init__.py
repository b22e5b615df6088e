"""P²'s reduction programs (Xie et al. 2022): chunk states, laws, synthesis, two judges."""
