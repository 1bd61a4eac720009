package fault

import _ "example.com/shop/internal/commit" // want import-direction
