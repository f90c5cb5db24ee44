from hypothesis import settings

# A machine that is busy with other tests is no reason to fail.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")
