"""What benches share: homes, servers, loads, reports."""
