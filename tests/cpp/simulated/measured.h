// Programs whose time is measured on a job's clock.
#pragma once

namespace pfftjax::simulated {

// Runs what the command line after "--clock" says, and prints its figures as JSON.
int Measure(int count, char** arguments);

}  // namespace pfftjax::simulated
