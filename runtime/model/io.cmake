# Configuration, layout, checkpoints and initialisation: the part of the model without arithmetic.
set(spillway_model_io_sources
  detail/config_fields.cpp
  detail/strict_json.cpp
  model_config.cpp
  model_config_read.cpp
  model_config_write.cpp
  parameter_layout.cpp)
