# Fuzzers of configuration and data. Corpora: tests/engine/configs and corpus/token.
spillway_fuzzer(config_fuzz config_fuzz.cpp LINKS spillway::engine)
spillway_fuzzer(token_fuzz token_fuzz.cpp LINKS spillway::data)
