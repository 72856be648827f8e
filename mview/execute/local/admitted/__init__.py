"""The admitted list: functions by kind, the types that they take, and what stands for them."""
