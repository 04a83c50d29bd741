# Configuration, layout, checkpoints and initialisation: the part of the model without arithmetic.
set(spillway_model_io_sources
  checkpoint_read.cpp
  checkpoint_write.cpp
  detail/config_fields.cpp
  detail/posix_file.cpp
  detail/staging_directory.cpp
  detail/strict_json.cpp
  initialize.cpp
  model_config.cpp
  model_config_read.cpp
  model_config_write.cpp
  parameter_layout.cpp
  safetensors.cpp
  safetensors_header.cpp)
