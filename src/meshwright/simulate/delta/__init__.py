"""Delta simulation (FlexFlow, section 5.3): a changed task graph simulated from the change on."""
