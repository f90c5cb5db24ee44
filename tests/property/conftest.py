from hypothesis import settings

# A machine that is busy with other tests is no reason to fail. Examples differ from run to run: many short runs find
# what one long run does.
settings.register_profile("patient", deadline=None, max_examples=50)
settings.load_profile("patient")
