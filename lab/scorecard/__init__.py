"""The scorecard: fault tapes replayed through real Alloy, Loki, Mimir and Alertmanager, and what was notified.

A *tape* (tapes/*.yaml) is what one host emits over time and the notification that an operator should get, taken from the
vendor's documents and not from our rules. Each tape is replayed once per *mode*, a way to read the GPUs, in real time. A replay
has a host of its own: a simulated GPU machine (lab.gpu), its exporters, and an Alloy process with the files of a real host. All
replays of a batch share one Mimir with its ruler and Alertmanager and one Loki. What is scored is what arrives at a webhook
receiver.
"""
