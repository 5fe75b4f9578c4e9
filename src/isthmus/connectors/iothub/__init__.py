"""Azure IoT Hub: device-to-cloud messages as a source, cloud-to-device messages as a target, on the ports of the bridge."""
