"""Pure: from what the user wrote to what each agent is asked."""
