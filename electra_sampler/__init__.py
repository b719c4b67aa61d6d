"""The console command `electra-sampler`, where the project is installed."""
