// A rank that is terminated, or interrupted from the keyboard, says what it was waiting for. When
// one rank is killed, the launcher terminates the others: they say what they were in, which the
// launcher cannot know.
#pragma once

namespace pfftjax {

// Installs the handlers of SIGTERM, unless the program has one of its own, and of SIGINT, unless
// it is ignored. The signal then does what it did before.
void ReportTermination();

}  // namespace pfftjax
