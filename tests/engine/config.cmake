# Tests of configuration and schedules; tests/engine/CMakeLists.txt adds the rest.
spillway_test(engine_config_test
  SOURCES config_examples_test.cpp config_read_test.cpp config_round_trip_test.cpp
          config_scheduler_test.cpp schedule_test.cpp
  LINKS spillway::engine)
add_executable(schedule_print schedule_print.cpp)
target_link_libraries(schedule_print PRIVATE spillway::engine spillway_flags)
spillway_python_test(schedule_peer_test ${CMAKE_CURRENT_SOURCE_DIR}/schedule_peer_test.py
  ARGUMENTS $<TARGET_FILE:schedule_print>)
