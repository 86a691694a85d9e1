"""Jobs on reliable and transient hosts whose links are the bottleneck (Proteus §6.4 to §6.6)."""
