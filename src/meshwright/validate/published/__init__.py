"""Published training steps, each as its configuration, through the simulator that decides."""
