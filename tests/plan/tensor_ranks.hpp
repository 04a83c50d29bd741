// Ranks of a tensor group on paper: they hold blocks of matrices, multiply them, and count each
// element that one sends to another. What tensor_cut_test.cpp checks the closed formulas against.
#pragma once

#include <cstddef>
#include <vector>

namespace spillway::plan {

struct Matrix {
  std::size_t rows = 0;
  std::size_t columns = 0;
  std::vector<double> values;

  Matrix() = default;
  Matrix(std::size_t r, std::size_t c) : rows(r), columns(c), values(r * c) {}
  double& at(std::size_t r, std::size_t c) { return values[r * columns + c]; }
  [[nodiscard]] double at(std::size_t r, std::size_t c) const { return values[r * columns + c]; }
};

inline Matrix numbered(std::size_t rows, std::size_t columns, int seed) {
  Matrix m(rows, columns);
  for (std::size_t i = 0; i < m.values.size(); ++i) {
    m.values[i] = static_cast<double>((i * 7 + static_cast<std::size_t>(seed)) % 11) - 5;
  }
  return m;
}

inline Matrix transposed(const Matrix& m) {
  Matrix t(m.columns, m.rows);
  for (std::size_t r = 0; r < m.rows; ++r) {
    for (std::size_t c = 0; c < m.columns; ++c) t.at(c, r) = m.at(r, c);
  }
  return t;
}

inline Matrix operator*(const Matrix& a, const Matrix& b) {
  Matrix product(a.rows, b.columns);
  for (std::size_t r = 0; r < a.rows; ++r) {
    for (std::size_t k = 0; k < a.columns; ++k) {
      for (std::size_t c = 0; c < b.columns; ++c) product.at(r, c) += a.at(r, k) * b.at(k, c);
    }
  }
  return product;
}

inline void operator+=(Matrix& sum, const Matrix& other) {
  if (sum.values.empty()) sum = Matrix(other.rows, other.columns);
  for (std::size_t i = 0; i < sum.values.size(); ++i) sum.values[i] += other.values[i];
}

/// Returns block (row, column) of a matrix that is cut into `of_rows` * `of_columns`.
inline Matrix block(const Matrix& m, std::size_t row, std::size_t of_rows, std::size_t column = 0,
                    std::size_t of_columns = 1) {
  Matrix part(m.rows / of_rows, m.columns / of_columns);
  for (std::size_t r = 0; r < part.rows; ++r) {
    for (std::size_t c = 0; c < part.columns; ++c) {
      part.at(r, c) = m.at(row * part.rows + r, column * part.columns + c);
    }
  }
  return part;
}

/// Moves blocks between the ranks of a group and counts what leaves a rank for another.
class Network {
 public:
  /// Every rank gets what the root has.
  const Matrix& broadcast(const Matrix& of_root, std::size_t ranks) {
    for (std::size_t r = 1; r < ranks; ++r) sent_ += of_root.values.size();
    return of_root;
  }
  /// One rank gets the sum of what each has.
  Matrix reduce(const std::vector<Matrix>& of_ranks) {
    Matrix sum;
    for (std::size_t r = 0; r < of_ranks.size(); ++r) {
      if (r > 0) sent_ += of_ranks[r].values.size();
      sum += of_ranks[r];
    }
    return sum;
  }
  /// Every rank gets the rows of all, which go round a ring.
  Matrix all_gather(const std::vector<Matrix>& of_ranks) {
    Matrix all(0, of_ranks.front().columns);
    for (const Matrix& part : of_ranks) {
      for (std::size_t hop = 1; hop < of_ranks.size(); ++hop) sent_ += part.values.size();
      all.rows += part.rows;
      all.values.insert(all.values.end(), part.values.begin(), part.values.end());
    }
    return all;
  }
  /// Each rank gets its rows of the sum, which grows as it goes round a ring.
  std::vector<Matrix> reduce_scatter(const std::vector<Matrix>& of_ranks) {
    const std::size_t ranks = of_ranks.size();
    std::vector<Matrix> parts(ranks);
    for (std::size_t part = 0; part < ranks; ++part) {
      for (std::size_t hop = 0; hop < ranks; ++hop) {
        const Matrix own = block(of_ranks[(part + hop + 1) % ranks], part, ranks);
        if (hop > 0) sent_ += own.values.size();
        parts[part] += own;
      }
    }
    return parts;
  }
  Matrix all_reduce(const std::vector<Matrix>& of_ranks) {
    return all_gather(reduce_scatter(of_ranks));
  }

  /// Returns what was sent since it was asked last.
  double take() {
    const auto sent = static_cast<double>(sent_);
    sent_ = 0;
    return sent;
  }

 private:
  std::size_t sent_ = 0;
};

}  // namespace spillway::plan
