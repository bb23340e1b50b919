"""Math environments: MetaMathQA and Countdown."""
