"""A draft for any target: its own text, a small student, and the proof of what the student brings."""
