"""Load tests over the SDK: loads become schedules, are played by Locust, kept request by request, and reported."""
