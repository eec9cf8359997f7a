// Where a rank stands among others.
#pragma once

namespace pfftjax {

struct Place {
  int rank = 0;
  int size = 1;  // how many ranks there are
};

}  // namespace pfftjax
