"""TensorFlow with Keras 3: the neutral workloads as Keras models, and one module per checkpoint mechanism."""

import os

# Both are read once, by the first import of either library.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # errors only
os.environ["KERAS_BACKEND"] = "tensorflow"  # whatever the user's keras.json says
