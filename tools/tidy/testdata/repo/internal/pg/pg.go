package pg

import _ "example.com/shop/internal/fault"
