"""Distributed runs: work, facts, calls and limits that workers on any machine share."""
