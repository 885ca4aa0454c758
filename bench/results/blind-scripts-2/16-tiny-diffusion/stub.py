"""Nothing stands in: the script makes its circle of points itself."""

import kit

kit.run()
