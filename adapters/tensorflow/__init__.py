"""TensorFlow with Keras 3.

The neutral workloads are Keras models, and each checkpoint mechanism is one file.
"""

import os

# The first import of either library reads both variables.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors alone
# This overrides the user's keras.json.
os.environ["KERAS_BACKEND"] = "tensorflow"
