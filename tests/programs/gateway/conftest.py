from hypothesis import settings

# A machine that is busy with other tests is no reason to fail.
settings.register_profile("patient gateway", deadline=None, max_examples=30)
settings.load_profile("patient gateway")
