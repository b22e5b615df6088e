"""Why a plan is what it is: critical path, exposed communication, counterfactuals, what-if."""
