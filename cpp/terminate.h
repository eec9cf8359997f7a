// What a terminated rank was waiting for. When one rank is killed, the launcher terminates the
// others: they say what they were in, which the launcher cannot know.
#pragma once

namespace pfftjax {

// Installs the handler of SIGTERM, unless the program has one of its own. The signal then does
// what it did before.
void ReportTermination();

}  // namespace pfftjax
