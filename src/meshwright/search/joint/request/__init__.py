"""What a search is asked and answers: `PlanRequest`, constraints, `PlanResult`."""
