"""Kernels: a breakdown of a process's device time, whatever ran on it.

Theory of operation

1. *Activities* are kernels that compute, kernels that communicate, and copies (memory sets among
   them), each on a stream (`bfpp.traces.profiles.device_profile`).
2. *Unions.* Streams run at once, so that durations do not add up: a device computes where one
   computing kernel or more runs (`bfpp.traces.timeline.intervals`).
3. *Breakdown* (`breakdown`). The time from the first activity's start to the last one's end is
   compute; else communication, which is exposed; else copies; else idle. These four add up.
4. *Idle time.* The activity that ends an idle stretch had been launched, or not: the device waits
   for the host until then, and for the launch itself or for another stream after it.
5. *Passes* (`passes`). A pass lasts from its first to its last kernel; within it, the same four
   parts show how much of it is compute.
6. *Replay* (`replay`). A trace without start times gets them from durations and dependencies.
"""
