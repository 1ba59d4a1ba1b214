// In operation: azd has deployed the images, alerts have a receiver, operators have their rights, and what is sent is deleted.
using '../main.bicep'

param environmentName = 'operated'
param location = 'westeurope'
param apiExists = true
param workerExists = true
param consumerExists = true
param workerMaxReplicas = 5
param consumerMaxReplicas = 4
param deleteAfterPublish = '*'
param alertEmail = 'operators@example.com'
param operatorPrincipalIds = [
  'aaaaaaaa-0000-0000-0000-000000000000'
]
param leaseOperatorPrincipalIds = [
  'bbbbbbbb-0000-0000-0000-000000000000'
]
