"""H-scheduler beside a ResourceManager of YARN: what the plugin there tells, and the plan that it is answered."""
