// What a command tells the parser of the command line: its flags and arguments. Only
// command_line.cpp and main.cpp read CLI11's headers, which take a compiler seconds in every
// source.
#pragma once

#include <cstddef>
#include <string>

namespace CLI {  // NOLINT(readability-identifier-naming): the library names it
class App;
class Option;
}  // namespace CLI

namespace spillway::cli {

/// One flag or positional argument: a view of CLI11's.
class Argument {
 public:
  explicit Argument(CLI::Option& option) : option_(&option) {}

  Argument required() const;
  Argument optional() const;
  Argument needs(Argument other) const;
  Argument excludes(Argument other) const;
  /// The help shows the value that the variable has.
  Argument capture_default() const;
  Argument description(const std::string& text) const;
  /// Puts `text` before the description.
  Argument description_before(const std::string& text) const;
  Argument type_name(const std::string& name) const;
  Argument environment(const std::string& variable) const;
  /// One word may hold several values with commas between them.
  Argument comma_separated() const;
  /// It takes one word, although the variable is a list.
  Argument single() const;
  Argument existing_directory() const;
  Argument positive() const;
  Argument range(int lowest, int highest) const;

 private:
  CLI::Option* option_;
};

/// The program or one of its commands: a view of CLI11's.
class Command {
 public:
  explicit Command(CLI::App& app) : app_(&app) {}

  /// Adds what sets `value`, which must live as long as the program. For texts, paths, numbers and
  /// lists of them.
  template <class T>
  Argument add_option(const std::string& name, T& value, const std::string& description) const;
  Argument add_flag(const std::string& name, bool& value, const std::string& description) const;
  /// Adds a command of which the arguments must choose a subcommand.
  Command add_group(const std::string& name, const std::string& description) const;
  [[nodiscard]] Argument option(const std::string& name) const;
  [[nodiscard]] CLI::App& app() const { return *app_; }

 private:
  CLI::App* app_;
};

/// Reads a number with a unit, "64Mi" or "1G". Throws `std::exception` for anything else.
[[nodiscard]] std::size_t parse_count(std::string text);

}  // namespace spillway::cli
