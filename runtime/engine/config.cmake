# Sources of configuration and schedules; runtime/engine/CMakeLists.txt adds the rest.
set(spillway_engine_config_sources
  config_keys.cpp config_read.cpp config_read_scheduler.cpp config_read_section.cpp
  config_read_text.cpp config_validate.cpp config_write.cpp schedule.cpp)
