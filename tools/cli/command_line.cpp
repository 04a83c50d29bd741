#include "tools/cli/command_line.hpp"

#include <CLI/CLI.hpp>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "runtime/base/error.hpp"

namespace spillway::cli {

Argument Argument::required() const {
  option_->required();
  return *this;
}
Argument Argument::optional() const {
  option_->required(false);
  return *this;
}
Argument Argument::needs(Argument other) const {
  option_->needs(other.option_);
  return *this;
}
Argument Argument::excludes(Argument other) const {
  option_->excludes(other.option_);
  return *this;
}
Argument Argument::capture_default() const {
  option_->capture_default_str();
  return *this;
}
Argument Argument::description(const std::string& text) const {
  option_->description(text);
  return *this;
}
Argument Argument::description_before(const std::string& text) const {
  option_->description(text + option_->get_description());
  return *this;
}
Argument Argument::type_name(const std::string& name) const {
  option_->type_name(name);
  return *this;
}
Argument Argument::environment(const std::string& variable) const {
  option_->envname(variable);
  return *this;
}
Argument Argument::comma_separated() const {
  option_->delimiter(',');
  return *this;
}
Argument Argument::single() const {
  option_->expected(1);
  return *this;
}
Argument Argument::existing_directory() const {
  option_->check(CLI::ExistingDirectory);
  return *this;
}
Argument Argument::positive() const {
  option_->check(CLI::PositiveNumber);
  return *this;
}
Argument Argument::range(int lowest, int highest) const {
  option_->check(CLI::Range(lowest, highest));
  return *this;
}

template <class T>
Argument Command::add_option(const std::string& name, T& value,
                             const std::string& description) const {
  return Argument(*app_->add_option(name, value, description));
}
template Argument Command::add_option(const std::string&, std::string&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::filesystem::path&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, int&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::uint32_t&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::uint64_t&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::optional<std::uint64_t>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, double&, const std::string&) const;
template Argument Command::add_option(const std::string&, std::optional<double>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<std::string>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<std::filesystem::path>&,
                                      const std::string&) const;
template Argument Command::add_option(const std::string&, std::vector<std::uint64_t>&,
                                      const std::string&) const;

Argument Command::add_flag(const std::string& name, bool& value,
                           const std::string& description) const {
  return Argument(*app_->add_flag(name, value, description));
}

Command Command::add_group(const std::string& name, const std::string& description) const {
  CLI::App* const group = app_->add_subcommand(name, description);
  group->require_subcommand(1);
  return Command(*group);
}

Argument Command::option(const std::string& name) const {
  return Argument(*app_->get_option(name));
}

std::size_t parse_count(std::string text) {
  const std::string error = CLI::AsSizeValue(false)(text);
  check(error.empty(), ErrorCode::invalid_argument, error);
  return std::stoull(text);
}

}  // namespace spillway::cli
