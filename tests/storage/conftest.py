from kit.s3 import clock, proxy, proxy_of_module

__all__ = ["clock", "proxy", "proxy_of_module"]
