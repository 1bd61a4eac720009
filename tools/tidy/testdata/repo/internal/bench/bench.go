package bench

import _ "example.com/shop/gen/shop/v1"
