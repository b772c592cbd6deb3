"""CAPTURE: VMs behind RPC: find or ship the recorder, line up the clocks, drain as it goes."""
